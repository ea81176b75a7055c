"""Speed of the GPU engine as it is served."""
