import process from 'node:process';

/**
 * Lets a program end normally when its standard output is closed (EPIPE), as by `| head`. Any other write error, such
 * as a full disk, ends the program with exit code 1.
 * @param name - of the program, for the message
 */
export function tolerateBrokenPipe(name: string): void {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') return;
    process.stderr.write(`${name}: cannot write to standard output: ${error.message}\n`);
    process.exit(1);
  });
}
