"""`penstock bench`: what each verb costs, measured beside the round trips it is made of."""
