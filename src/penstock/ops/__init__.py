"""Who operates Penstock asks here."""
