"""What is found by looking at the numbers of a step (`find_nonfinite`)."""
