# SPDX-License-Identifier: Apache-2.0
"""Models of elastic groups, fitted by scikit-learn and statsmodels (extra ``elastic``); never in a service of nova.

:mod:`.models`
    the linear classifier, five ARIMA predictors and the regression tree
"""
