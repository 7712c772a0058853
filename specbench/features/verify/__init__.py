"""Verification: does a method, as implemented, follow the distribution that it declares, on this pair and device?"""
