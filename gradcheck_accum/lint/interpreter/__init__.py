"""The interpreter: carries out a training loop's skeleton, one statement and one expression at a time.

Nothing of the file is imported or executed. What a loop does is recorded (`gradcheck_accum.lint.state.recorder`).
"""
