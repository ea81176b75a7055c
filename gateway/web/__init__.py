"""The page: files of `static/`, which a browser gets as they are, and how they are served."""
