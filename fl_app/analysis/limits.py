"""From where on the Refiner paper calls a reconstruction a leak: PSNR or SSIM above, LPIPS below."""

PSNR, SSIM, LPIPS = 15.0, 0.5, 0.05
