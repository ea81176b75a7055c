"""The stage `export`: heads in the layouts that other engines load."""
