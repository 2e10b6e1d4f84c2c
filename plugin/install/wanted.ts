import type { Conflist } from './conflist.js';

/** A program that was given to the installer, such as `portmap`. */
export interface GivenProgram {
  readonly name: string;
  /** Where it is taken from. */
  readonly path: string;
}

/** What an installation is to leave behind, and where. */
export interface Wanted {
  /** Where the files are seen by this process. */
  readonly binaryDirectory: string;
  readonly configDirectory: string;
  /** Where programs are for the container runtime. */
  readonly runtimeBinaryDirectory: string;
  /** The shim, and the names that it gets. */
  readonly shim: Buffer;
  readonly binaries: readonly string[];
  /** Whether a program that is there, and works, is replaced by one of another release. */
  readonly updatesBinaries: boolean;
  /** Other programs that are put in place where they are missing. */
  readonly programs: readonly GivenProgram[];
  readonly conflistName: string;
  readonly conflist: Conflist;
  /** Permission bits. */
  readonly conflistMode: number;
  /** Name of a network configuration that goes once ours is in place; undefined when there is none. */
  readonly oldConfName: string | undefined;
}
