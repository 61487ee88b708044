"""A fleet of machines: measured at the same time, judged against each other, and watched over days.

Each node leaves an ordinary run file. `board` carries messages between a launcher and its nodes, `member` runs on each
node, `collect` gathers the run files, and the launchers start the members through Ray, Slurm or the environment."""
