"""Where the runs of a sweep are done when not in this process's own pool: a Ray cluster, or SLURM."""
