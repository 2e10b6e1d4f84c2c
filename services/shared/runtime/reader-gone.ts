import process from 'node:process';

/**
 * Lets a program end as it does anyhow when nobody reads its standard output any more: who pipes a long list into `head` has
 * seen enough. Output that cannot be written for another reason, such as a full disk, ends the program with exit code 1.
 * @param name - of the program, for the message
 */
export function outliveReader(name: string): void {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') return;
    process.stderr.write(`${name}: cannot write to the standard output: ${error.message}\n`);
    process.exit(1);
  });
}
