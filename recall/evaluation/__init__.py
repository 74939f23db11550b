"""Measuring recall: readers of public data sets, metrics, significance. Nothing of it is needed to serve."""
