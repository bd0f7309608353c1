"""The spellings of the first guide of GT, each as a script of a user."""
