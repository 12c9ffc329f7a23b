"""From response text to "equal or not"; `extract` and `literals` import nothing, the rest is for workers."""
