package conformance

var leaseScenarios, waitScenarios, childScenarios, cancelScenarios, threadScenarios, gatheringScenarios, lateScenarios, inputScenarios, watchdogScenarios []Scenario
