"""How a figure is taken.

The plan, supervised worker processes, the timing engine and its stopping policy, the sampling process, and the
recording that puts them into a run file.

Everything that needs a device, a clock or a process is here or in `gpubench.devices`; nothing here judges.
"""
