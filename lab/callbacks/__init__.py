"""All that happens now and then during training, as Lightning callbacks."""
