"""Random programs of a runner against a plain model of a page: what generated tests and the soak are made of."""
