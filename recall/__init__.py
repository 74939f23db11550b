"""Recall: budget-fitted context packs from vectors, full text and graph. The pure core; knows neither Ray nor HTTP."""
