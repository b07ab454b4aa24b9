package agenttest_test

import "testing"

// The example of CrashEverywhere is executed.
func TestExampleOfCrashesPasses(t *testing.T) { testGreet(t) }
