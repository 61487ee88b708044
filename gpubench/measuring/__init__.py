"""Measure: the plan, supervised worker processes, the timing engine, the sampling process, and the recording of a run.

Everything that needs a device, a clock or a process is here or in `gpubench.devices`; nothing here judges."""
