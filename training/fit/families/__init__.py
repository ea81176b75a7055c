"""The families of drafters that `fit` trains."""
