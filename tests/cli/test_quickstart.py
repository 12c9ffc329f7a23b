"""The whole path on one command, made small by overrides: pool, training, evaluation, report."""

SMALL = [
    "--problems.count", "150", "--pool.mixed_groups", "16", "--pool.probe_groups", "2",
    "--train.groups_per_update", "8", "--train.max_updates", "2", "--evaluation.k", "4",
    "--evaluation.problems.count", "6", "--reference.refresh_every", "1",
]  # fmt: skip


def test_quickstart_ends_in_a_summary_and_a_report_and_says_so_again(command, tmp_path):
    code, output = command("quickstart", *SMALL, cwd=tmp_path)
    assert code == 0, output
    for words in ("sampled -> ", "mixed -> 16 trained on", "mean@4", "pass@4", "drift", "ESS"):
        assert words in output, output
    page = (tmp_path / "runs/quickstart/report.html").read_text()
    assert "<h1" in page
    code, again = command("quickstart", *SMALL, cwd=tmp_path)
    assert code == 0
    assert "to start over: rm -r pools/quickstart runs/quickstart" in again
    code, output = command("evaluate", "runs/quickstart", cwd=tmp_path)
    assert code == 0, output
    assert "mean@4" in output
    code, output = command("run", "verify", "runs/quickstart", cwd=tmp_path)
    assert code == 0, output
    assert "each exactly once" in output
