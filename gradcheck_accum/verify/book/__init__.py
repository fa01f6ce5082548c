"""What is kept of a running loop:

its gradients as they should be by now, its clips, and a record of each backward and each step.
"""
