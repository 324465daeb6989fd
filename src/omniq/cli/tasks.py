import click


@click.command()
def tasks():
    pass


@click.command()
def show():
    pass


@click.command()
def retry():
    pass


@click.command()
def cancel():
    pass
