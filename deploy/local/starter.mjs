// start.mjs, as the demonstration knows it: the other end of a pipe. It says by which process the node's namespaces are found
// from outside, and ends the pipe when the demonstration is to stop, also when it is killed.
import { Socket } from 'node:net';

/** File descriptor of the pipe. */
const PIPE = 3;

export class Starter {
  #pipe = new Socket({ fd: PIPE }).setEncoding('utf8');

  /** Resolves with a process's number for `nsenter -t`: this process knows only those of its own process namespace. */
  namespacesPid = new Promise((resolve) => this.#pipe.once('data', (line) => resolve(Number(line))));

  /** Resolves when start.mjs is stopped or has died. */
  gone = new Promise((resolve) => this.#pipe.once('close', resolve));
}
