//! Writes the program of a step from a model, a budget and a batch shape
