// The release of this library, which is that of the server, and the Node.js that it needs.

/** The release of this library. */
export const version = "0.2.0-dev";

const major = Number(process.versions.node.split(".")[0]);
if (major < 20) throw new Error(`perdure needs Node.js 20 or later, and this is ${process.version}`);
