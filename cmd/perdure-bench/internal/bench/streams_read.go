package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure/api"
)

// monotonic returns the time of the monotonic clock, which all processes share, in nanoseconds.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // can't fail
	return t.Nano()
}

// A frame is an event of a stream. Its slices are valid until the next frame is read.
type frame struct {
	id    int64
	event []byte
	data  []byte
}

var (
	endFrame = []byte(api.StreamEnd)
	attached = []byte(api.StreamAttached)
	gapFrame = []byte(api.StreamGap)
)

// readStream attaches to a run's stream and calls on for every frame. It returns nil when the run's
// log has ended, and an error when on returns one or the stream is cut. It is written for thousands
// of connections in one process, which shares the CPU with the server.
func readStream(ctx context.Context, url, key, run string, after int64, on func(*frame) error) error {
	host := strings.TrimPrefix(url, "http://")
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := fmt.Fprintf(conn,
		"GET %s/runs/%s/stream HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nLast-Event-ID: %d\r\nAccept: "+
			"%s\r\n\r\n",
		api.Prefix, run, host, key, after, api.MediaStream); err != nil {
		return err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNoContent:
		return nil
	default:
		b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return fmt.Errorf("stream of %s: %d %s", run, res.StatusCode, b)
	}
	res.Header = nil // otherwise it stays in memory as long as the stream
	return readFrames(res.Body, on)
}

// readFrames reads frames as the server writes them: lines end with LF, and an event has one line
// of data. A stream that ends without the end frame was cut. Anything after the end frame is an
// error.
func readFrames(body io.Reader, on func(*frame) error) error {
	r := bufio.NewReaderSize(body, 2<<10)
	var f frame
	var long []byte // a line that is longer than the reader's buffer
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long[:0], line...)
			for errors.Is(err, bufio.ErrBufferFull) {
				line, err = r.ReadSlice('\n')
				long = append(long, line...)
			}
			line = long
		}
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		line = line[:len(line)-1]
		if len(line) == 0 {
			if len(f.event) > 0 {
				if err := on(&f); err != nil {
					return err
				}
				if bytes.Equal(f.event, endFrame) {
					if _, err := r.ReadByte(); err != io.EOF {
						return fmt.Errorf("a stream goes on after its end, or ends badly: %w", err)
					}
					return nil
				}
			}
			f.event, f.data = f.event[:0], f.data[:0]
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch string(name) {
		case "id":
			if f.id, err = strconv.ParseInt(string(value), 10, 64); err != nil {
				return fmt.Errorf("a stream's id: %w", err)
			}
		case "event":
			f.event = append(f.event[:0], value...)
		case "data":
			f.data = append(f.data[:0], value...)
		case "", "retry": // a comment, a hint
		default:
			return fmt.Errorf("a stream has a line that is none: %q", line)
		}
	}
}
