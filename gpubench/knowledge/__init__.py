"""State facts about hardware in tables that name their sources.

They are the peaks of data sheets, the rates of a compute unit per clock cycle, the sizes of its caches, and the floors
of known models of GPU (`floors.toml`). The matrices of published language models are here too.

A device that is in no table has no peak; nothing is guessed."""
