"""Self-supervised pretraining of encoders on footage without labels: MAE and DINO."""
