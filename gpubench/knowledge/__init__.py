"""Facts about hardware, as tables that name their sources.

What data sheets promise, what a compute unit does in one clock, how large its caches are, and what a known model of
GPU should reach (`floors.toml`). Also the matrices of published language models.

A device that no table knows has no peak; nothing is guessed.
"""
