"""Forecasts of emergencies: a model of vital signs, trained and applied on Spark."""
