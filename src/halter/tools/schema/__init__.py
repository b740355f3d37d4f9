"""JSON schemas from function signatures, and checked arguments from what a model sends."""
