package agent_test

import ()
