"""Runs the tests beside it with one line each, TAP-like."""

import os
import sys
import unittest


class Lines(unittest.TextTestResult):
    def startTest(self, test):
        unittest.TestResult.startTest(self, test)

    def addSuccess(self, test):
        unittest.TestResult.addSuccess(self, test)
        self.stream.writeln(f"ok {name(test)}")

    def addError(self, test, err):
        unittest.TestResult.addError(self, test, err)
        self.stream.writeln(f"not ok {name(test)}")

    def addFailure(self, test, err):
        unittest.TestResult.addFailure(self, test, err)
        self.stream.writeln(f"not ok {name(test)}")

    def addSkip(self, test, reason):
        unittest.TestResult.addSkip(self, test, reason)
        self.stream.writeln(f"ok {name(test)} # SKIP {reason}")


def name(test):
    return test.id().split(".", 1)[-1].replace("_", " ")


here = os.path.dirname(os.path.abspath(__file__))
suite = unittest.defaultTestLoader.discover(here, "test_*.py")
runner = unittest.TextTestRunner(stream=sys.stdout, resultclass=Lines)
sys.exit(not runner.run(suite).wasSuccessful())
