"""What a decode round costs, counted stage by stage and priced: a model, not a measurement."""
