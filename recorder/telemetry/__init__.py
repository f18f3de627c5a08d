"""What the machine did while a load ran: providers, samples and the sampler thread."""
