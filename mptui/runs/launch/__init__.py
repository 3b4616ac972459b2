"""Groups of processes for one run: their start, their guard, and batch jobs of SLURM."""
