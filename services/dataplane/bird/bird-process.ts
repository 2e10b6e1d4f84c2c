import { spawn, type ChildProcess } from 'node:child_process';

/** Paths of BIRD and its files. */
export interface BirdFiles {
  /** The program `bird`, by name or path. */
  readonly program: string;
  readonly configPath: string;
  readonly socketPath: string;
}

/** Result of `bird -p` for a file: accepted, refused with a reason, or no such program. */
export type OfflineCheck =
  | { readonly kind: 'accepted' }
  | { readonly kind: 'refused'; readonly reason: string }
  | { readonly kind: 'unavailable' };

/** Checks a configuration with the program, without running it. */
export function checkOffline(program: string, path: string): Promise<OfflineCheck> {
  return new Promise((resolve) => {
    const child = spawn(program, ['-p', '-c', path], { stdio: ['ignore', 'ignore', 'pipe'] });
    let output = '';
    child.stderr.setEncoding('utf8');
    child.stderr.on('data', (piece: string) => (output += piece));
    child.on('error', () => resolve({ kind: 'unavailable' }));
    child.on('close', (code) =>
      resolve(code === 0 ? { kind: 'accepted' } : { kind: 'refused', reason: output.trim() }),
    );
  });
}

/** A BIRD process started by this service. */
export interface BirdProcess {
  /** Resolves at its end, with the exit status. */
  readonly ended: Promise<string>;
  /** Kills it without notifying its neighbours: they keep its routes for the time of a graceful restart. */
  kill(): void;
}

/**
 * Starts `bird` in the foreground in graceful restart recovery, as neighbours may have kept this node's routes.
 * @param onLine - receives each line that BIRD logs
 */
export function startBird(files: BirdFiles, onLine: (line: string) => void): BirdProcess {
  const child = spawn(files.program, ['-f', '-R', '-c', files.configPath, '-s', files.socketPath], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  return { ended: exitStatus(child, onLine), kill: () => child.kill('SIGKILL') };
}

function exitStatus(child: ChildProcess, onLine: (line: string) => void): Promise<string> {
  let rest = '';
  child.stderr?.setEncoding('utf8');
  child.stderr?.on('data', (piece: string) => {
    const lines = (rest + piece).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) onLine(line);
  });
  return new Promise((resolve) => {
    child.on('error', (error) => resolve(`could not be started: ${error.message}`));
    child.on('close', (code, signal) => resolve(signal === null ? `exited with ${code}` : `was ended by ${signal}`));
  });
}
