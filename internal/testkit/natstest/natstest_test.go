package natstest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

func reachable(port int) bool {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		c.Close()
	}
	return err == nil
}

func TestAServerIsKilledAndComesBackOnItsPort(t *testing.T) {
	s := Start(t, Options{})
	url := s.URL()
	s.Kill()
	if reachable(s.opt.Port) {
		t.Error("it still answers")
	}
	s.Restart()
	if !reachable(s.opt.Port) || s.URL() != url {
		t.Errorf("%s, before it was %s", s.URL(), url)
	}
}

// parent is set in a process that starts a server and waits to be killed.
const parent = "PERDURE_NATSTEST_PARENT"

func TestAServerDiesWithWhoStartedIt(t *testing.T) {
	if os.Getenv(parent) != "" {
		fmt.Println(Start(t, Options{}).opt.Port)
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestAServerDiesWithWhoStartedIt$")
	cmd.Env = append(os.Environ(), parent+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	port := 0
	if _, scanned := fmt.Sscan(line, &port); err != nil || scanned != nil {
		t.Fatalf("%q %v", line, err)
	}
	if !reachable(port) {
		t.Fatal("there is no server")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually.True(t, "the server ends with its parent", func() bool { return !reachable(port) })
}
