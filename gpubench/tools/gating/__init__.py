"""A gate with all that it needs: files read as evidence, baselines found, and the measurements that it asks for."""
