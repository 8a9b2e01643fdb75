"""What a defense sends, and the law of its noise."""

from scipy import stats

from client_defenses import Memory


def sent_by(defense, value, seed=0):
    return defense.transform({"g": value}, Memory.fresh(seed))["g"]


def like_normal(draws):
    return stats.kstest(draws.double().numpy(), "norm").pvalue > 0.01
