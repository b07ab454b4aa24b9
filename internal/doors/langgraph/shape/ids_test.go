package shape

import "testing"

// The ids of assistants are those of the reference server: "agent" is known from its clients.
func TestIDsOfAssistants(t *testing.T) {
	if got, want := IDOfKind("agent"), "fe096781-5601-53d2-b2f6-0d3403f7e9ca"; got != want {
		t.Errorf("id of agent = %s, want %s", got, want)
	}
}
