package mcp

import "time"

// Limits of what a server may cost.
const (
	// maxServers is the number of servers of a client.
	maxServers = 32
	// maxMessage is the size of one message, in bytes. A larger one ends the connection.
	maxMessage = 4 << 20
	// maxUnasked is what a program may write between two calls, and the size of one answer over HTTP.
	maxUnasked = 16 << 20
	// maxStderr is what is kept of the end of a program's standard error.
	maxStderr = 4 << 10

	// maxTools is the number of tools of a server, and maxPages that of the pages of its list.
	maxTools = 64
	maxPages = 16
	// maxName is the size of the name of a tool, as the server has it.
	maxName = 200
	// maxDescription is the size of the description of a tool.
	maxDescription = 1 << 10
	// maxSchema is the size of a schema, and maxSchemas that of all schemas and descriptions of a server
	// that are shown to the model. maxAll is the same for all servers.
	maxSchema  = 16 << 10
	maxSchemas = 64 << 10
	maxAll     = 256 << 10
	// maxChecks limits the work of a check: the number of subschemas and values in a schema, with
	// references followed. maxDepth is their depth, and maxPattern the size of its expressions, in
	// instructions. maxChecked is the size of a value that is checked, and maxCompared limits the
	// product of the parts of the schema and those of the value.
	maxChecks   = 2000
	maxDepth    = 32
	maxPattern  = 2000
	maxChecked  = 64 << 10
	maxCompared = 1 << 20
	// maxRawDepth is the depth of a schema as the server writes it. A deeper one is refused.
	maxRawDepth = 256

	// maxResult is the default of Options.MaxResult. maxFiles is the number of files that one result may
	// leave as artifacts.
	maxResult = 32 << 10
	maxFiles  = 8
	// maxError is the size of an error of a server, as it is shown to the model.
	maxError = 2 << 10
	// maxArguments is the size of arguments.
	maxArguments = 256 << 10
)

const (
	// listFor is how long a list of tools is used.
	listFor = time.Minute
	// connectTimeout limits the time that a server has to start and to answer first, and listTimeout the
	// time that all servers have to list their tools.
	connectTimeout = 30 * time.Second
	listTimeout    = 10 * time.Second
	// probeTimeout is how long a server may take to give a sign of life after a timeout.
	probeTimeout = 5 * time.Second
	// endTimeout is how long a program may take to end after its standard input was closed.
	endTimeout = time.Second
	// firstPause and longestPause limit the pause before a server is connected again. A connection
	// that has lasted for steadyAfter resets the pause.
	firstPause   = time.Second
	longestPause = time.Minute
	steadyAfter  = time.Minute
)
