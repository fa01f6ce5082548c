"""What runs or steps a loop from outside: Accelerate, Fabric, DeepSpeed, Ignite, Lightning, and methods that count."""
