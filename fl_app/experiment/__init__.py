"""From settings to the parts of a run: the frozen Experiment, its data, model and defense, what is granted, and the truth."""
