"""From a job's checkpoints to a function that is served: compared, chosen, deployed."""
