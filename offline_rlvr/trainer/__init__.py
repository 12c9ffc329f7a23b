"""Training: `train(config, pool_path, run_path)` and the run folder it writes."""
