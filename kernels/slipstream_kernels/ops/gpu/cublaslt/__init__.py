"""Linear layers by cuBLASLt, with algorithms whose bits are those of `linear`'s tiles.

cuBLASLt chooses an algorithm by the number of rows, and some of its algorithms split the sum over K: then a row's bits
depend on the rows beside it. An algorithm that is fixed, does not split and needs no workspace is one chain of matrix
instructions over K as a tile's is, and on an H200 its bits are the tile's. Here algorithms are named, asked for by
name, and used where the device's table has them and where they give a tile's bits when the process starts.
"""
